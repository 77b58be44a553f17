"""Files and locked memory."""
