"""One program for each contender: it loads the op as the contender's documentation says, and prints its value."""
