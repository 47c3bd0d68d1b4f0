"""What a model must have to be decoded, a module for each kind. Nothing is inherited or registered."""
