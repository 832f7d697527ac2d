/*
 * A doubly linked list whose nodes are members of its items: an item leaves it without a search.
 * A zeroed list is empty. A list owns nothing.
 */
#ifndef FSDPD_BASE_LIST_H
#define FSDPD_BASE_LIST_H

#include <stddef.h>

struct list_node {
    struct list_node *next, *previous;
};

struct list {
    struct list_node *first, *last;
    int count;
};

/* The item of type `type` whose member `member` is this node. */
#define LIST_ITEM(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

static inline void list_append(struct list *list, struct list_node *node)
{
    *node = (struct list_node){.previous = list->last};
    *(list->last != NULL ? &list->last->next : &list->first) = node;
    list->last = node;
    list->count++;
}

/* `node` must be in this list. */
static inline void list_remove(struct list *list, struct list_node *node)
{
    *(node->previous != NULL ? &node->previous->next : &list->first) = node->next;
    *(node->next != NULL ? &node->next->previous : &list->last) = node->previous;
    list->count--;
}

/* Visits the nodes from the first to the last. The body may remove `node`, but no other one. */
#define LIST_EACH(node, list)                                                                      \
    for (struct list_node *node = (list)->first, *node##_next = node != NULL ? node->next : NULL;  \
         node != NULL; node = node##_next, node##_next = node != NULL ? node->next : NULL)

#endif
