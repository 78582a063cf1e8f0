#!/bin/sh
# Stand-in for the script onload: runs a program with the library preloaded.
[ "$1" != --version ] || { echo "Onload 9.2.0.0-stand-in"; exit 0; }
LD_PRELOAD=libonload.so exec "$@"
