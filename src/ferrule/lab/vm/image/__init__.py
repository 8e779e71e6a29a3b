"""What a guest's file system is made of."""
