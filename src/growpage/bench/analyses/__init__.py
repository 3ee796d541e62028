"""The paper's own analyses, for any model and any questions: one module each.

A module has pure functions from results to a report that is ready for JSON, and from the report to
a table and a figure.
"""
