/* common/base/list.h: the order of its items, and removal from any place. */
#include "base/list.h"

#include <stdlib.h>

#include "tests/testing.h"

struct letter {
    char name;
    struct list_node node;
};

/* The names of the list's items, from the first and, reversed, from the last. */
static void expect(const struct list *list, const char *names)
{
    int count = 0;
    LIST_EACH(node, list)
    ck_assert_int_eq(LIST_ITEM(node, struct letter, node)->name, names[count++]);
    ck_assert_int_eq(names[count], '\0');
    ck_assert_int_eq(list->count, count);
    for (const struct list_node *node = list->last; node != NULL; node = node->previous)
        ck_assert_int_eq(LIST_ITEM(node, struct letter, node)->name, names[--count]);
    ck_assert_int_eq(count, 0);
}

TEST(items_leave_from_any_place)
{
    struct list list = {0};
    struct letter a = {.name = 'a'}, b = {.name = 'b'}, c = {.name = 'c'};
    expect(&list, "");
    list_append(&list, &a.node);
    list_append(&list, &b.node);
    list_append(&list, &c.node);
    expect(&list, "abc");
    list_remove(&list, &b.node);
    expect(&list, "ac");
    list_append(&list, &b.node);
    expect(&list, "acb");
    list_remove(&list, &a.node);
    expect(&list, "cb");
    list_remove(&list, &b.node);
    expect(&list, "c");
    list_remove(&list, &c.node);
    expect(&list, "");
}

TEST(a_visited_item_may_be_freed)
{
    struct list list = {0};
    for (int i = 0; i < 3; i++) {
        struct letter *letter = malloc(sizeof *letter);
        letter->name = (char)('a' + i);
        list_append(&list, &letter->node);
    }
    LIST_EACH(node, &list)
    {
        struct letter *letter = LIST_ITEM(node, struct letter, node);
        if (letter->name == 'b') continue;
        list_remove(&list, node);
        free(letter);
    }
    expect(&list, "b");
    free(LIST_ITEM(list.first, struct letter, node));
}
