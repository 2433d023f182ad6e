"""Tables, charts and pages made of what the stages recorded."""
