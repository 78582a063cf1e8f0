/* Stand-in for the hook of a CDI spec: reads the container's state on stdin and lifts RLIMIT_MEMLOCK of its init.
   The framework is tried out with it before the product's own hook exists. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int main(void)
{
	static char state[1 << 20];
	size_t size = fread(state, 1, sizeof(state) - 1, stdin);
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
	char *at;
	int pid;

	state[size] = 0;
	at = strstr(state, "\"pid\"");
	if (!at || !(at = strchr(at, ':')) || (pid = atoi(at + 1)) <= 0) {
		fputs("stand-in hook: no pid in the state\n", stderr);
		return 1;
	}
	if (prlimit(pid, RLIMIT_MEMLOCK, &limit, NULL)) {
		perror("stand-in hook: memlock is left as it is");
		if (!prlimit(pid, RLIMIT_MEMLOCK, NULL, &limit)) {
			limit.rlim_cur = limit.rlim_max;
			prlimit(pid, RLIMIT_MEMLOCK, &limit, NULL);
		}
	}
	return 0;
}
