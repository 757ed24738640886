-- The shop's data, the same at every start. tests/bench/escra/apps/shop.py computes names and prices by the same rules.
begin;
drop table if exists order_lines, orders, reviews, products;
create table products (
    id integer primary key,
    name text not null,
    price_cents integer not null,
    category integer not null,
    description text not null
);
insert into products
select
    id,
    (string_to_array('amber,brass,cedar,delft,ebony,flint,glass,hazel,ivory,jade,linen,maple,onyx,pearl,quartz,slate', ','))[1 + id % 16]
    || ' ' ||
    (string_to_array('anvil,basin,bench,board,bowl,brush,candle,chair,chest,clock,crate,desk,drum,easel,frame,globe,hook,jar,kettle,lamp,'
        'ladle,mirror,mug,plate,press,rack,screen,shelf,stool,tray,vase,wheel', ','))[1 + (id / 16) % 32]
    || ' ' || id,
    100 + (id * 7919) % 9900,
    id % 40,
    (select string_agg(md5(id || '-' || part), ' ') from generate_series(1, 12) as part)
from generate_series(0, 4999) as id;
create index on products (category);
create table reviews (product integer not null, stars integer not null, words text not null);
insert into reviews select id % 5000, 1 + (id * 31) % 5, md5(id::text) || ' ' || md5((id + 1)::text) from generate_series(0, 29999) as id;
create index on reviews (product);
create table orders (id bigserial primary key, customer text not null, total_cents integer not null);
create table order_lines (order_id bigint not null, product integer not null, count integer not null);
create index on order_lines (order_id);
commit;
analyze;
