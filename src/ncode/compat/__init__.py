"""Other libraries' signatures over our solver, so that changing an import is enough."""
