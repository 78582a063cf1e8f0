/* Stand-in for libonload.so: what a process sees of it that was started with it preloaded. Accelerates nothing, and opens nothing: a
   program that is to look as one with a stack opens /dev/onload twice by itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "standin.h"

/* An entry of the real table takes 8 bytes; beyond this many the allocation fails, as it does under docker's default limit. */
#define ENTRY_BYTES 8
#define MOST_ENTRIES (64UL << 20)

__attribute__((visibility("default"))) const char onload_version[] = STANDIN_VERSION;
__attribute__((visibility("default"))) const char oo_uk_intf_ver[] = STANDIN_CHECKSUM;

/* Since glibc 2.38 the headers turn strtoul into __isoc23_strtoul@GLIBC_2.38: the need of a new glibc is this call. */
static unsigned long wanted_entries(void)
{
	const char *text = getenv("EF_FDTABLE_SIZE");
	char *end;
	unsigned long value;

	if (!text || !*text)
		return 0;
	value = strtoul(text, &end, 10);
	return *end ? 0 : value;
}

static void say(int fd, const char *text)
{
	ssize_t done = write(fd, text, strlen(text));
	(void)done;
}

static void die(void)
{
	int *volatile nowhere = NULL; /* a fault, not raise(3): that would not end the first process of a pid namespace */

	say(2, "stand-in libonload: cannot allocate the descriptor table, lower the nofile limit or set EF_FDTABLE_SIZE\n");
	*nowhere = 0;
}

static void size_table(void)
{
	struct rlimit limit;
	unsigned long wanted = wanted_entries();
	void *table;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	if (wanted && wanted < limit.rlim_max) {
		limit.rlim_max = wanted;
		if (limit.rlim_cur > wanted)
			limit.rlim_cur = wanted;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (limit.rlim_max > MOST_ENTRIES)
		die();
	table = mmap(NULL, limit.rlim_max * ENTRY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (table == MAP_FAILED)
		die();
}

/* One line a process: into the file that STANDIN_MARK_FILE names, and a file of the pid's name where there is a directory for them. */
static void leave_mark(void)
{
	const char *file = getenv("STANDIN_MARK_FILE");
	char line[128], path[64];
	int fd;

	snprintf(line, sizeof(line), "%d %s\n", (int)getpid(), program_invocation_short_name);
	if (file) {
		fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
		if (fd >= 0) {
			say(fd, line);
			close(fd);
		}
	}
	snprintf(path, sizeof(path), "/tmp/onload-marks/%d", (int)getpid());
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (fd >= 0) {
		say(fd, line);
		close(fd);
	}
}

__attribute__((constructor)) static void standin_start(void)
{
	size_table();
	leave_mark();
}
