/* The serialised FileDescriptorSet of every .proto file here, with imports; made by the build. */
#ifndef FSDPD_PROTO_DESCRIPTORS_H
#define FSDPD_PROTO_DESCRIPTORS_H

extern const unsigned char proto_descriptors[];
extern const unsigned long proto_descriptors_size;

#endif
