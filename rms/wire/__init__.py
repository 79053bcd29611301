"""Messages, HTTP and command-line habits: all of rms that dmr and mpdata import.

On a compute node, launcher lines (:mod:`rms.client.launch`) and meters (:mod:`rms.power`) add
themselves to it, and nothing else of rms.
"""
