"""The content-addressed cache of built ops."""
