"""What is generated of the documents. Nothing here imports torch."""
