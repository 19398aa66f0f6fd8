"""Run `baton chat` with small servers instead of vLLM, ready in a second: python -m tests.serve.chat_small MODEL …"""

from baton.tasks.serve.chat import open as chat_open
from baton.tasks.serve.chat.command import main

if __name__ == "__main__":
    chat_open.MODULE = "tests.serve.small_server"
    main()
