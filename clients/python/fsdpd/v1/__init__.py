"""The messages and stubs of the API, generated when the package is built."""
