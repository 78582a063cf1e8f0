/* Stand-in for onload_stackdump and zf_stackdump: an ELF program that needs libc alone. */
#include <fcntl.h>
#include <stdio.h>

#include "standin.h"

int main(void)
{
	if (open("/dev/onload", O_RDWR) < 0) {
		perror("stand-in: /dev/onload");
		return 1;
	}
	puts("stand-in " STANDIN_VERSION);
	return 0;
}
