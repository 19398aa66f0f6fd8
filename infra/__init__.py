"""Text is UTF-8 in every process, whatever the machine's locale is: files are, and what a terminal cannot show is
escaped instead of an error."""

import io
import locale
import sys

if not sys.flags.utf8_mode and locale.getencoding().lower() != "utf-8":
    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")  # the default encoding of files that are opened from here on
    except locale.Error:
        sys.exit(f"Baton's files are in UTF-8, and this machine's locale is {locale.getencoding()}: set PYTHONUTF8=1")
for _stream in (sys.stdout, sys.stderr):
    if isinstance(_stream, io.TextIOWrapper) and (_stream.encoding.lower() != "utf-8" or _stream.errors == "strict"):
        _stream.reconfigure(errors="backslashreplace")
