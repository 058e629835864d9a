"""Tries to reach a service of the host from a sandbox, by every address that could mean the host.

Arguments: the port of a TCP and a UDP service on all addresses of the host, then these addresses.
The service counts what reaches it; the test compares the count.
"""

import concurrent.futures
import os
import socket
import struct
import sys

port = int(sys.argv[1])
V4 = [
    "127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.254", "0.0.0.0", "0.0.0.1", "169.254.169.254", "169.254.1.1",
    "10.0.0.1", "10.0.2.2", "172.16.0.1", "172.17.0.1", "192.168.0.1", "192.168.1.1", "100.64.0.1", "192.0.0.1",
    "198.18.0.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
]
V6 = [
    "::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1", "2002:7f00:1::1", "2001::1", "fe80::1", "fc00::1", "fd00::1", "ff02::1", "ff05::1",
]
V4 += [a for a in sys.argv[2:] if ":" not in a]
V6 += [a for a in sys.argv[2:] if ":" in a] + ["::ffff:" + a for a in sys.argv[2:] if ":" not in a]


def reach(family, kind, address):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(2)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            s.connect((address, port))
            s.send(b"GET / HTTP/1.0\r\n\r\n")
            return bool(s.recv(16))
    except OSError:
        return False


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def datagram(source, destination, protocol=17, offset=0, options=b""):
    """A raw IPv4 packet with a UDP datagram (or its bytes under another protocol) for the service."""
    body = struct.pack("!HHHH", 4000, port, 8 + 5, 0) + b"spoof"
    words = 5 + len(options) // 4
    packed = [socket.inet_aton(a) for a in (source, destination)]
    head = struct.pack("!BBHHHBBH4s4s", 0x40 | words, 0, 4 * words + len(body), 7, offset, 64, protocol, 0, *packed)
    head += options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + body


def spoof():
    sent = 0
    try:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    except OSError as error:
        print("raw sockets:", error)
        return sent
    own = [a for a in sys.argv[2:] if ":" not in a]
    source_route = struct.pack("!BBB4sB", 131, 7, 4, socket.inet_aton((own or ["10.0.0.1"])[0]), 0)
    for destination in ["127.0.0.1", "10.0.0.1", "203.0.113.9", *own]:
        packets = [datagram(source, destination) for source in ("127.0.0.1", "0.0.0.0", "10.0.0.7", "255.255.255.255", *own)]
        packets += [datagram("10.0.0.7", destination, protocol=p) for p in (1, 2, 4, 6, 41, 47, 50, 51, 89, 132, 255)]
        packets += [datagram("10.0.0.7", destination, offset=o) for o in (0x2000, 0x1FFF, 1)]
        packets += [datagram("10.0.0.7", destination, options=source_route)]
        for packet in packets:
            try:
                raw.sendto(packet, (destination, 0))
                sent += 1
            except OSError:
                pass
    return sent


with concurrent.futures.ThreadPoolExecutor(64) as pool:
    tries = [pool.submit(reach, socket.AF_INET, k, a) for a in V4 for k in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
    tries += [pool.submit(reach, socket.AF_INET6, k, a) for a in V6 for k in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
    answered = sum(t.result() for t in tries)
print("tried", len(tries), "answered", answered, "packets", spoof())
