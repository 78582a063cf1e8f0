/* What discovery reads in a program: its needs. */
const char version[] = VERSION;
const char checksum[] = CHECKSUM;

extern int __libc_start_main(void);
extern int YOUNGEST(void);

void _start(void)
{
    YOUNGEST();
    __libc_start_main();
    for (;;)
        ;
}
