"""The functions that users call: they turn a user's models and data into problems, run the engines and give results."""
