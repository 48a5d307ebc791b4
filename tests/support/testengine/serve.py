"""vLLM's `serve`, which starts several API servers where it is asked to; its module for one server ignores that.

Its own command looks for a distribution called vllm; the one for the CPU has another name. Run as a script by the
interpreter of the engine's environment: `serve.py serve MODEL OPTION…`. Nothing of this project is imported here.
"""

import importlib

if __name__ == "__main__":
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    serve = importlib.import_module("vllm.entrypoints.cli.serve").ServeSubcommand()
    serve.subparser_init(parser.add_subparsers(required=True, dest="subparser"))
    arguments = parser.parse_args()
    serve.validate(arguments)
    serve.cmd(arguments)
