"""A guest's file system: packages, Python, modules and files in a cpio archive."""
