"""The results of the commands: one module per command, frozen types with numbers and no sentences.

A type listed in ``document_versions`` *is* the command's document: its fields are the keys after the head
(``schema``, ``version``, ``vmtool``, ``command``). A type is imported when it is needed.
"""
