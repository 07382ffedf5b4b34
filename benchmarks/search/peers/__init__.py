"""Other tools' engines under the same load; each file is run by an interpreter that has the tool."""
