"""The HTTP face of Holdfast: collectors today. The web framework is used here and in the console alone."""
