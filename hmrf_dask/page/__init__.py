"""The page: questions to a person in a browser, and what came of the answers."""
