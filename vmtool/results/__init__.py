"""What each command found: one module a command, frozen types that hold numbers, no sentences.

A type listed in ``kinds`` *is* the command's document: its fields are the keys after the head
(``schema``, ``version``, ``vmtool``, ``command``). A type is imported when it is needed.
"""
