"""What is generated of the documents."""
