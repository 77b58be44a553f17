"""Other programs on this library, one module each. Nothing of the library imports them."""
