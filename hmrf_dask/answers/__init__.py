"""Answers as people give them: questions, the journal of what was said, and what it comes to."""
