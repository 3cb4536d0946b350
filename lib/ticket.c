/* SPDX-License-Identifier: Apache-2.0 */
#include "ticket.h"

#include <stdlib.h>
#include <string.h>

#define SLAB_TICKETS 32

struct kvr__ticket_slab {
        struct kvr__ticket_slab *next;
        struct kvr_ticket tickets[SLAB_TICKETS];
};

struct kvr_ticket *kvr__tickets_take(struct kvr__tickets *tickets)
{
        struct kvr_ticket *ticket = tickets->free;

        if (!ticket)
                return NULL;
        tickets->free = ticket->next_free;
        tickets->out++;
        return ticket;
}

void kvr__tickets_give(struct kvr__tickets *tickets, struct kvr_ticket *ticket)
{
        ticket->next_free = tickets->free;
        tickets->free = ticket;
        tickets->out--;
}

struct kvr__ticket_slab *kvr__ticket_slab_new(void)
{
        struct kvr__ticket_slab *slab = calloc(1, sizeof(*slab));

        if (!slab)
                return NULL;
        for (size_t i = 0; i < SLAB_TICKETS; i++) {
                struct kvr_ticket *ticket = &slab->tickets[i];

                ticket->points = ticket->own_points;
                ticket->point_room = KVR__TICKET_POINTS;
                ticket->next_free = i + 1 < SLAB_TICKETS ? ticket + 1 : NULL;
        }
        return slab;
}

void kvr__tickets_add(struct kvr__tickets *tickets, struct kvr__ticket_slab *slab)
{
        slab->next = tickets->slabs;
        tickets->slabs = slab;
        slab->tickets[SLAB_TICKETS - 1].next_free = tickets->free;
        tickets->free = slab->tickets;
}

static void points_free(struct kvr_ticket *ticket)
{
        if (ticket->points != ticket->own_points)
                free(ticket->points);
        ticket->points = ticket->own_points;
        ticket->point_room = KVR__TICKET_POINTS;
}

void kvr__tickets_fini(struct kvr__tickets *tickets)
{
        while (tickets->slabs) {
                struct kvr__ticket_slab *slab = tickets->slabs;

                tickets->slabs = slab->next;
                for (size_t i = 0; i < SLAB_TICKETS; i++)
                        points_free(&slab->tickets[i]);
                free(slab);
        }
        *tickets = (struct kvr__tickets){0};
}

bool kvr__ticket_set_points(struct kvr_ticket *ticket, const struct kvr_point *points, uint32_t count)
{
        if (count > ticket->point_room) {
                uint32_t room = KVR__TICKET_POINTS;

                while (room < count)
                        room *= 2;
                struct kvr_point *fresh = malloc(room * sizeof(*fresh));

                if (!fresh)
                        return false;
                points_free(ticket);
                ticket->points = fresh;
                ticket->point_room = room;
        }
        if (count)
                memcpy(ticket->points, points, count * sizeof(*points));
        ticket->point_count = count;
        return true;
}

void kvr__ticket_trim(struct kvr_ticket *ticket)
{
        if (ticket->point_room > KVR__TICKET_POINTS_KEPT)
                points_free(ticket);
}
