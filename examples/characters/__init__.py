"""The parts of the example ``train_characters.py``: text, model, training and the comparison of two runs."""
