"""The paper's case studies: their runs, tables and figures."""
