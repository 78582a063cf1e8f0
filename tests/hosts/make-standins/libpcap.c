int pcap_close(void) { return 0; }
