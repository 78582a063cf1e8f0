/* The first process of a pod's sandbox: waits until it is told to go. */
#include <signal.h>
#include <unistd.h>

static void end(int signal)
{
	(void)signal;
	_exit(0);
}

int main(void)
{
	signal(SIGTERM, end);
	signal(SIGINT, end);
	for (;;)
		pause();
}
