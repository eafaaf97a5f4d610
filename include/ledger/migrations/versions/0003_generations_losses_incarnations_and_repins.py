"""Generations, losses, incarnations of topics and repins."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = '0003'
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table('generations',
    sa.Column('pipeline', sa.String(), nullable=False, comment='Name of the pipeline'),
    sa.Column('number', sa.BigInteger(), nullable=False, comment='0 at the first start, then one more each time'),
    sa.Column('started_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False, comment='When it was opened'),
    sa.Column('started_by', sa.String(), nullable=False, comment='user@host that opened it'),
    sa.Column('reason', sa.String(), nullable=False, comment='Why it was opened'),
    sa.Column('fingerprints', postgresql.JSONB(astext_type=sa.Text()), nullable=False, comment='By query: the facts that its checkpoint depends on, as of its first start'),
    sa.Column('positions', postgresql.JSONB(astext_type=sa.Text()), nullable=False, comment='By query: topic, topic partition and offset where it began in this generation'),
    sa.PrimaryKeyConstraint('pipeline', 'number', name=op.f('pk_generations')),
    comment="Generations of a pipeline's stream; the highest number is the current one"
    )
    op.create_table('losses',
    sa.Column('id', sa.BigInteger(), nullable=False, comment='Surrogate key'),
    sa.Column('pipeline', sa.String(), nullable=False, comment='Name of the pipeline'),
    sa.Column('topic', sa.String(), nullable=False, comment='Name of the topic'),
    sa.Column('topic_id', sa.String(), nullable=False, comment="Kafka's topic id"),
    sa.Column('topic_partition', sa.BigInteger(), nullable=False, comment='Number of the topic partition'),
    sa.Column('from_offset', sa.BigInteger(), nullable=False, comment='First lost offset, included'),
    sa.Column('until_offset', sa.BigInteger(), nullable=False, comment='Last lost offset, excluded'),
    sa.Column('found_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False, comment='When it was found first'),
    sa.Column('accepted_at', sa.DateTime(timezone=True), nullable=True, comment='When it was accepted'),
    sa.Column('accepted_by', sa.String(), nullable=True, comment='user@host that accepted it'),
    sa.Column('reason', sa.String(), nullable=True, comment='Why it was accepted'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_losses')),
    sa.UniqueConstraint('pipeline', 'topic_id', 'topic_partition', 'from_offset', name=op.f('uq_losses_pipeline_topic_id_topic_partition_from_offset')),
    comment='Offsets removed from Kafka before they were archived, and who accepted that; kept for ever'
    )
    op.create_table('topic_incarnations',
    sa.Column('id', sa.BigInteger(), nullable=False, comment='Surrogate key'),
    sa.Column('pipeline', sa.String(), nullable=False, comment='Name of the pipeline'),
    sa.Column('topic', sa.String(), nullable=False, comment='Name of the topic'),
    sa.Column('topic_id', sa.String(), nullable=False, comment="Kafka's topic id of the closed incarnation"),
    sa.Column('topic_partitions', sa.BigInteger(), nullable=False, comment='Number of its topic partitions when last seen'),
    sa.Column('successor_id', sa.String(), nullable=False, comment='Topic id of the incarnation that was adopted instead'),
    sa.Column('closed_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False, comment='When its successor was adopted'),
    sa.Column('closed_by', sa.String(), nullable=False, comment='user@host that adopted the successor'),
    sa.Column('reason', sa.String(), nullable=False, comment='Why'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_topic_incarnations')),
    sa.UniqueConstraint('pipeline', 'topic_id', name=op.f('uq_topic_incarnations_pipeline_topic_id')),
    comment='Topics that were deleted and created again: the incarnations before the current one'
    )
    op.create_table('repins',
    sa.Column('id', sa.BigInteger(), nullable=False, comment='Surrogate key'),
    sa.Column('interval_id', sa.BigInteger(), nullable=False, comment='The interval'),
    sa.Column('repinned_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False, comment='When'),
    sa.Column('repinned_by', sa.String(), nullable=False, comment="user@host, or Airflow's run id"),
    sa.Column('old_ranges', postgresql.JSONB(astext_type=sa.Text()), nullable=False, comment='topic, topic_id, partition and offsets before'),
    sa.Column('new_ranges', postgresql.JSONB(astext_type=sa.Text()), nullable=False, comment='topic, topic_id, partition and offsets after'),
    sa.ForeignKeyConstraint(['interval_id'], ['intervals.id'], name=op.f('fk_repins_interval_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_repins')),
    comment='Intervals that were pinned again on request, with the ranges before and after'
    )
    op.create_index(op.f('ix_repins_interval_id'), 'repins', ['interval_id'], unique=False)


def downgrade() -> None:
    """Take back."""
    op.drop_index(op.f('ix_repins_interval_id'), table_name='repins')
    op.drop_table('repins')
    op.drop_table('topic_incarnations')
    op.drop_table('losses')
    op.drop_table('generations')
