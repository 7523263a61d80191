"""How each library enters a flow: `entries(flow, settings)`, one file a library, imported only if it is to run."""
