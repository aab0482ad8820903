"""A headless Chromium, driven through the pipe of its DevTools protocol: the standard library is enough."""

import base64
import json
import os
import shutil
import struct
import subprocess
import tempfile
import time
import zlib

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell"]


def find():
    """The path of a Chromium; None if there is none. CHROMIUM may name one."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    def __init__(self, width=1400, height=1250):
        self.profile = tempfile.mkdtemp(prefix="gpumem-browser-")
        to_browser, self.output = os.pipe()
        self.input, from_browser = os.pipe()
        arguments = [
            find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--disable-background-networking", "--allow-file-access-from-files", f"--user-data-dir={self.profile}",
            f"--window-size={width},{height}", "about:blank",
        ]  # fmt: skip

        def place():
            # The browser reads from 3 and writes to 4.
            ends = [os.dup(to_browser), os.dup(from_browser)]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            arguments, close_fds=False, preexec_fn=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self.rest, self.number, self.session, self.problems = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.output)
        os.close(self.input)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, **params):
        self.number += 1
        number = self.number
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.output, data) :]
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def receive(self):
        while b"\0" not in self.rest:
            data = os.read(self.input, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self.rest += data
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        if event.get("method") == "Runtime.exceptionThrown":
            details = event["params"]["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.problems.append(event["params"]["entry"]["text"])

    def open(self, path):
        """Opens a file; returns at once."""
        self.call("Page.navigate", url=path if "://" in path else "file://" + os.path.abspath(path))

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return result["result"].get("value")

    def wait(self, script, seconds=60):
        end = time.time() + seconds
        while time.time() < end and not self.problems:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.02)
        raise RuntimeError(f"not within {seconds} s: {script}; {self.problems}")

    def theme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y):
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def key(self, key, modifiers=0):
        codes = {"Tab": 9, "Enter": 13, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "PageDown": 34, "PageUp": 33}
        code = codes.get(key, ord(key[0].upper()) if len(key) == 1 else 0)
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else None)
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", key=key, windowsVirtualKeyCode=code, modifiers=modifiers, **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code, modifiers=modifiers)

    def screenshot(self, path, clip=None):
        params = {"clip": {**clip, "scale": 1}} if clip else {}
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, **params)["data"])
        with open(path, "wb") as output:
            output.write(smaller(data))


def smaller(png):
    """The same picture without alpha, compressed better than a browser takes the time to."""
    width, height, _, kind = struct.unpack(">IIBB", png[16:26])
    step, at, packed = (4 if kind == 6 else 3), 8, b""
    while at < len(png):
        length, name = struct.unpack(">I4s", png[at : at + 8])
        packed += png[at + 8 : at + 8 + length] if name == b"IDAT" else b""
        at += length + 12
    data, rows, above = zlib.decompress(packed), [], bytearray(width * step)
    for y in range(height):
        start = y * (width * step + 1)
        above = unfiltered(data[start], bytearray(data[start + 1 : start + 1 + width * step]), above, step)
        row = bytearray(width * 3)
        for color in range(3):
            row[color::3] = above[color::step]
        rows.append(b"\0" + bytes(row))
    packer = zlib.compressobj(9, zlib.DEFLATED, 15, 9)
    packed = packer.compress(b"".join(rows)) + packer.flush()
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", packed), (b"IEND", b"")]
    return png[:8] + b"".join(struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in parts)


def unfiltered(kind, row, above, step):
    for x in range(len(row)):
        left, up, corner = (row[x - step], above[x], above[x - step]) if x >= step else (0, above[x], 0)
        if kind == 4:
            near = left + up - corner
            far = (abs(near - left), abs(near - up), abs(near - corner))
            guess = left if far[0] <= far[1] and far[0] <= far[2] else up if far[1] <= far[2] else corner
        else:
            guess = (0, left, up, (left + up) // 2)[kind]
        row[x] = (row[x] + guess) & 0xFF
    return row
