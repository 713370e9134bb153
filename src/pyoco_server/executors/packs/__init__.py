"""How a pack is executed: in a warm child process, one at a time, within its timebox.

A pack that crashes, hangs or eats memory takes its process with it and nothing else; and one that does not mind being
cancelled can be killed.
"""
