"""A server that burns a known processor time for each get, for the test of the load generator's figures.

burning_server.py MILLISECONDS      prints its port; every get misses
"""

import socket
import sys
import time


def main() -> None:
    burn_ns = int(float(sys.argv[1]) * 1e6)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                while block := connection.recv(65536):
                    for _ in range(block.count(b"\r\n")):
                        until_ns = time.thread_time_ns() + burn_ns
                        while time.thread_time_ns() < until_ns:
                            pass
                        connection.sendall(b"END\r\n")


if __name__ == "__main__":
    main()
