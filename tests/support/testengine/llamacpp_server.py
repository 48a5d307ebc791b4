"""llama.cpp's server: `llamacpp_server.py ARGUMENTS`, those of llama-server, run by the interpreter of its environment.

Nothing of this project is imported here. The arguments are read by llama.cpp's own parser, which its Python package has
inside and offers by no name; so it is called as C++ calls it. The file of locks names the version that this fits.
"""

import ctypes
import importlib
import signal
import sys
from typing import Any

PARSER = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
SERVER = 12  # LLAMA_EXAMPLE_SERVER: the parser knows each program's own arguments
HEAD_BYTES = 16  # of a Python object; then the parameters begin


def parse(library: str, parameters: Any, arguments: list[str]) -> bool:
    """Whether llama.cpp takes the arguments; what it has against them it writes itself."""
    parser = ctypes.CDLL(library)[PARSER]
    parser.restype = ctypes.c_bool
    words = ["llama-server", *arguments]
    given = (ctypes.c_char_p * (len(words) + 1))(*[word.encode() for word in words], None)
    return bool(parser(len(words), given, ctypes.c_void_p(id(parameters) + HEAD_BYTES), SERVER, None))


if __name__ == "__main__":
    xllamacpp = importlib.import_module("xllamacpp")
    wanted = xllamacpp.CommonParams()
    if not parse(str(importlib.import_module("xllamacpp.xllamacpp").__file__), wanted, sys.argv[1:]):
        sys.exit(2)
    server = xllamacpp.Server(wanted)
    print("serving", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM})
