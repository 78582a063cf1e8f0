/* What every stand-in has in common. The checksum is an arbitrary md5-shaped word: driver and library carry the same one. */
#ifndef STANDIN_H
#define STANDIN_H

#define STANDIN_CHECKSUM "57a4d1457a4d1457a4d1457a4d140001"
#define STANDIN_VERSION "9.2.0.0-stand-in"

#ifdef __KERNEL__
/* Called by the modules that stand on another one, so that the kernel shows them as its holders. */
void sfc_resource_standin(void);
void sfc_char_standin(void);
#endif

#endif
