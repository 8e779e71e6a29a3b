"""The commands of `ferrule launch`."""
