"""What a request will take, before the engine says so: its shape, its tokens, its output; and its text. Pure."""
