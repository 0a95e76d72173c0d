"""Which questions to ask a person: chosen so that few answers tell the clusters."""
