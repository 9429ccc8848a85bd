"""Request and response formats of the OpenAI and Anthropic APIs."""
