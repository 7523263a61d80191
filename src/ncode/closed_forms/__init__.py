"""Flows with a closed form or a cheaper exact pass: linear dynamics, and plastic weights."""
