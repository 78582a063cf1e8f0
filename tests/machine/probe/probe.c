/* Reports from inside a container what it was given: one "key value" line for each question, in the order asked.
   Static, so that it runs in any image and is never preloaded into itself; it looks at its parent and at the first process instead.

   probe [-u UID] QUESTION...
     limits                  uid, RLIMIT_MEMLOCK and RLIMIT_NOFILE (soft:hard, bytes or "unlimited"), CAP_IPC_LOCK in the effective set
     node=PATH               open PATH: "open MAJOR:MINOR", "absent" or the name of the error
     readnode=PATH           the same, then a read
     mlock=MIB               lock that much memory
     huge=DIR                map and touch one page of a new file in the hugetlbfs at DIR
     vfio=PATH               the status of a vfio group: "viable" or "not-viable"
     mount=PATH              the last mount on PATH: "TYPE ro|rw", or "none"
     root                    "rw" or "ro": whether the root file system takes a new file
     preload                 whether libonload.so is mapped in the parent and in process 1
     env=PREFIX              each variable whose name begins so
   With -u the questions are asked with that uid and gid, no other group and no capability. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* linux/vfio.h and linux/capability.h: a musl compiler has no kernel headers beside it. */
#define VFIO_GROUP_GET_STATUS _IO(';', 100 + 3)
#define VFIO_GROUP_FLAGS_VIABLE 1u
#define CAP_IPC_LOCK 14

extern char **environ;

static const char *error_name(int error)
{
	switch (error) {
	case EPERM: return "EPERM";
	case EACCES: return "EACCES";
	case ENOENT: return "absent";
	case ENXIO: return "ENXIO";
	case ENODEV: return "ENODEV";
	case EBUSY: return "EBUSY";
	case ENOMEM: return "ENOMEM";
	case EAGAIN: return "EAGAIN";
	case EROFS: return "EROFS";
	case EINVAL: return "EINVAL";
	default: return strerror(error);
	}
}

static void print_limit(const char *name, int resource)
{
	struct rlimit limit;
	rlim_t both[2];

	if (getrlimit(resource, &limit)) {
		printf("%s %s\n", name, error_name(errno));
		return;
	}
	both[0] = limit.rlim_cur;
	both[1] = limit.rlim_max;
	printf("%s ", name);
	for (int i = 0; i < 2; i++) {
		if (both[i] == RLIM_INFINITY)
			printf("unlimited");
		else
			printf("%llu", (unsigned long long)both[i]);
		putchar(i ? '\n' : ':');
	}
}

static void limits(void)
{
	unsigned long long effective = 0;
	char line[256];
	FILE *status = fopen("/proc/self/status", "re");

	while (status && fgets(line, sizeof(line), status))
		sscanf(line, "CapEff: %llx", &effective);
	if (status)
		fclose(status);
	printf("uid %u\n", (unsigned)getuid());
	print_limit("memlock", RLIMIT_MEMLOCK);
	print_limit("nofile", RLIMIT_NOFILE);
	printf("ipc_lock %s\n", effective >> CAP_IPC_LOCK & 1 ? "yes" : "no");
}

static void node(const char *path, int also_read)
{
	struct stat st;
	char byte;
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0 || fstat(fd, &st)) {
		printf("node=%s %s\n", path, error_name(errno));
	} else if (also_read && read(fd, &byte, 1) != 1) {
		printf("node=%s unreadable\n", path);
	} else {
		printf("node=%s open %u:%u\n", path, major(st.st_rdev), minor(st.st_rdev));
	}
	if (fd >= 0)
		close(fd);
}

static void lock_memory(const char *text)
{
	size_t size = strtoul(text, NULL, 10) << 20;
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED || mlock(at, size))
		printf("mlock %s\n", error_name(errno));
	else
		puts("mlock yes");
	if (at != MAP_FAILED)
		munmap(at, size);
}

static void huge(const char *dir)
{
	char path[512];
	struct statfs fs;
	unsigned char *at;
	int fd;

	snprintf(path, sizeof(path), "%s/probe-%d", dir, (int)getpid());
	if (statfs(dir, &fs)) {
		printf("huge=%s %s\n", dir, error_name(errno));
		return;
	}
	if ((unsigned long)fs.f_type != 0x958458f6) {
		printf("huge=%s not-hugetlbfs\n", dir);
		return;
	}
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0) {
		printf("huge=%s %s\n", dir, error_name(errno));
		return;
	}
	at = mmap(NULL, fs.f_bsize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		printf("huge=%s %s\n", dir, error_name(errno));
	} else {
		at[0] = 1;
		at[fs.f_bsize - 1] = 1;
		printf("huge=%s yes %ld\n", dir, (long)fs.f_bsize);
		munmap(at, fs.f_bsize);
	}
	unlink(path);
	close(fd);
}

static void vfio(const char *path)
{
	struct { uint32_t argsz, flags; } status = { sizeof(status), 0 };
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0 || ioctl(fd, VFIO_GROUP_GET_STATUS, &status))
		printf("vfio=%s %s\n", path, error_name(errno));
	else
		printf("vfio=%s %s\n", path, status.flags & VFIO_GROUP_FLAGS_VIABLE ? "viable" : "not-viable");
	if (fd >= 0)
		close(fd);
}

/* mountinfo: the fifth field is the mount point, the sixth its options, the one after " - " the type. */
static void mount_at(const char *path)
{
	char line[4096], point[1024], options[1024], type[128], answer[256] = "none";
	FILE *file = fopen("/proc/self/mountinfo", "re");

	while (file && fgets(line, sizeof(line), file)) {
		char *rest = strstr(line, " - ");

		if (rest && sscanf(line, "%*s %*s %*s %*s %1023s %1023s", point, options) == 2 && !strcmp(point, path) &&
		    sscanf(rest, " - %127s", type) == 1)
			snprintf(answer, sizeof(answer), "%s %s", type, !strncmp(options, "ro", 2) ? "ro" : "rw");
	}
	if (file)
		fclose(file);
	printf("mount=%s %s\n", path, answer);
}

static void root_state(void)
{
	int fd = open("/.probe", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0) {
		printf("root %s\n", errno == EROFS ? "ro" : error_name(errno));
		return;
	}
	close(fd);
	unlink("/.probe");
	puts("root rw");
}

static const char *maps_have(pid_t pid)
{
	char path[64], line[4096];
	const char *answer = "no";
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	maps = fopen(path, "re");
	if (!maps)
		return error_name(errno);
	while (fgets(line, sizeof(line), maps))
		if (strstr(line, "/libonload.so"))
			answer = "yes";
	fclose(maps);
	return answer;
}

static void environment(const char *prefix)
{
	for (char **at = environ; *at; at++)
		if (!strncmp(*at, prefix, strlen(prefix)))
			printf("env %s\n", *at);
}

static int ask(const char *question, pid_t parent)
{
	const char *value = strchr(question, '=');
	size_t size = value ? (size_t)(value++ - question) : strlen(question);

#define IS(word) (size == sizeof(word) - 1 && !strncmp(question, word, size))
	if (IS("limits"))
		limits();
	else if (IS("root"))
		root_state();
	else if (IS("preload"))
		printf("preload_parent %s\npreload_init %s\n", maps_have(parent), maps_have(1));
	else if (!value)
		return -1;
	else if (IS("node"))
		node(value, 0);
	else if (IS("readnode"))
		node(value, 1);
	else if (IS("mlock"))
		lock_memory(value);
	else if (IS("huge"))
		huge(value);
	else if (IS("vfio"))
		vfio(value);
	else if (IS("mount"))
		mount_at(value);
	else if (IS("env"))
		environment(value);
	else
		return -1;
	return 0;
#undef IS
}

int main(int argc, char **argv)
{
	pid_t parent = getppid();
	int first = 1;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 2 && !strcmp(argv[1], "-u")) {
		uid_t uid = strtoul(argv[2], NULL, 10);

		if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)) {
			printf("uid %s\n", error_name(errno));
			return 1;
		}
		first = 3;
	}
	for (int i = first; i < argc; i++) {
		if (ask(argv[i], parent)) {
			fprintf(stderr, "probe: unknown question %s\n", argv[i]);
			return 2;
		}
	}
	return 0;
}
