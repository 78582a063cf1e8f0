/* Symbols of glibc with the versions that they came with. */
long write(int fd, const void *bytes, unsigned long count) { return (long)count; }
int getentropy(void) { return 0; }
int __libc_start_main(void) { return 0; }
int __isoc23_strtoul(void) { return 0; }
